drop index log_takeovers;

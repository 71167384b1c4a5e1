drop index finished_failed_lane;

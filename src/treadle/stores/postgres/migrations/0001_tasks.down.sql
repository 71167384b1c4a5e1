-- Removes everything that 0001 made, and all data with it.
drop table lines;
drop table servers;
drop table log;
drop table finished;
drop table tasks;
drop table lanes;
drop sequence treadle_seq;
drop function treadle_now();

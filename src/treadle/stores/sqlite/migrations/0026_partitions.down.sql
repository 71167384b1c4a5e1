drop trigger finished_count_on;
drop trigger finished_count_out;
drop trigger finished_count_in;
drop table finished_counts;

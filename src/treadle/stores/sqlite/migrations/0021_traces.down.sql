drop index runs_trace;
drop index tasks_trace;
drop index finished_trace;

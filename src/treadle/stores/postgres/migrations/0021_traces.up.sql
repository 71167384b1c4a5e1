-- Find the trees of one trace: roots whose trace id came from their caller.

create index runs_trace on runs (trace_id) where root_id = id and trace_id <> id::text;
create index finished_trace on finished (trace_id) where root_id = id and trace_id is not null;
-- Last, because it locks out claims and renewals until the transaction ends.
create index tasks_trace on tasks (trace_id) where root_id = id and trace_id is not null;

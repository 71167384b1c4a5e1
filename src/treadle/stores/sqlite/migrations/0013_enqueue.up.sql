-- Nothing changes: it has no function that enqueues.

select 1;

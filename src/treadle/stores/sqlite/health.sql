-- name: list_tables
-- List tables with their bytes including indexes; reads every page of the file.
select m.tbl_name, sum(d.pgsize)
from dbstat as d join sqlite_schema as m on m.name = d.name
where d.aggregate = 1
group by m.tbl_name
order by 2 desc, 1;

-- name: find_overdue
-- Return the first `wake_at`.
select min(wake_at) from tasks where wake_at is not null;

-- name: count_rows
-- Count live and finished tasks.
select (select count(*) from tasks), (select count(*) from finished);

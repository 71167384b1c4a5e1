-- name: list_namespaces
-- List the namespaces with tasks, runs or records.
select distinct lanes.namespace
from lanes
where exists (select from tasks where tasks.lane_id = lanes.id) or exists (select from finished where finished.lane_id = lanes.id)
union
select namespace from runs
union
select namespace from records
order by 1;

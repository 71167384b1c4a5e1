-- Forget rates on keys, and the keys of handlers.

update lanes
set limit_key = null
where kind = 'handler' and limit_key is not null
  and not exists (select 1 from limits as m where m.namespace = lanes.namespace and m.key = lanes.limit_key and m.by_operator);
drop table handler_keys;
create table old_limits (
  namespace text not null,
  key text not null,
  max_running integer not null check (max_running > 0),
  by_operator integer not null,
  primary key (namespace, key)
) strict;
insert into old_limits (namespace, key, max_running, by_operator)
select namespace, key, max_running, by_operator from limits where max_running is not null;
drop table limits;
alter table old_limits rename to limits;

-- Forget rates on keys, and the keys of handlers.

drop trigger lanes_key on lanes;
drop function treadle_key_of_lane();
update lanes
set limit_key = null
where kind = 'handler' and limit_key is not null
  and not exists (select from limits as m where m.namespace = lanes.namespace and m.key = lanes.limit_key and m.by_operator);
drop table handler_keys;
delete from limits where max_running is null;
alter table limits
  drop column rate,
  drop column burst,
  drop column tokens,
  drop column tokens_at,
  alter column max_running set not null;

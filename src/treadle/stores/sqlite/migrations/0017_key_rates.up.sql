-- Rates on limit keys, and the keys of handlers. A key may have a rate without a maximum of running tasks.

create table new_limits (
  namespace text not null,
  key text not null,
  max_running integer check (max_running > 0),
  by_operator integer not null,
  rate real check (rate > 0),
  burst integer check (burst > 0),
  tokens real,
  tokens_at integer,
  primary key (namespace, key),
  check (max_running is not null or rate is not null),
  check ((rate is null) = (burst is null) and (rate is null) = (tokens is null) and (rate is null) = (tokens_at is null))
) strict;
insert into new_limits (namespace, key, max_running, by_operator) select namespace, key, max_running, by_operator from limits;
drop table limits;
alter table new_limits rename to limits;
create index limits_rated on limits (namespace, key) where rate is not null;

-- The limit key that a handler's tasks get if they have none; lanes copy it.
create table handler_keys (
  namespace text not null,
  name text not null,
  key text not null,
  primary key (namespace, name)
) strict;

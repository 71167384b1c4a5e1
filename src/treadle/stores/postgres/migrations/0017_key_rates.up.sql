-- Rates on limit keys, and the keys of handlers. A key may have a rate without a maximum of running tasks.

alter table limits
  alter column max_running drop not null,
  add column rate double precision check (rate > 0),
  add column burst integer check (burst > 0),
  add column tokens double precision,
  add column tokens_at bigint,
  add check (max_running is not null or rate is not null),
  add check ((rate is null) = (burst is null) and (rate is null) = (tokens is null) and (rate is null) = (tokens_at is null));
create index limits_rated on limits (namespace, key) where rate is not null;

-- The limit key that a handler's tasks get if they have none; lanes copy it.
create table handler_keys (
  namespace text not null,
  name text not null,
  key text not null,
  primary key (namespace, name)
);

-- Lanes are created by workers and by `treadle_enqueue_v1`.
create function treadle_key_of_lane() returns trigger language plpgsql set search_path from current as $$
begin
  new.limit_key := coalesce(
    (
      select h.key
      from handler_keys as h
      where h.namespace = new.namespace
        and (h.name = new.name or (strpos(h.name, '.') = 0 and right(new.name, length(h.name) + 1) = '.' || h.name))
      order by length(h.name) desc
      limit 1
    ),
    new.limit_key,
    (select m.key from limits as m where m.namespace = new.namespace and m.key = 'handler:' || new.name and m.rate is not null)
  );
  return new;
end
$$;
create trigger lanes_key before insert on lanes for each row when (new.kind = 'handler') execute function treadle_key_of_lane();

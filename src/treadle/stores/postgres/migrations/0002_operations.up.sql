-- Operation of the queue: lists, rates, limits, deduplication, large values, and pruning of whole trees.

-- Settings of a list; a list without a row has the defaults.
create table lists (
  namespace text not null,
  task_list text not null,
  paused boolean not null default false,
  accepting boolean not null default true,
  no_handler text not null default 'wait' check (no_handler in ('wait', 'ignore')),
  keep_completed_for bigint,
  keep_failed_for bigint,
  primary key (namespace, task_list)
);

-- `paused` and `accepting` are those of the list, kept here so that claims and inserts read one row; `limit_key` is given to
-- tasks that have none. A claim looks closer at slowed lanes, an insert at guarded ones: most often there are none.
alter table lanes
  add column paused boolean not null default false,
  add column accepting boolean not null default true,
  add column rate double precision check (rate > 0),
  add column burst integer check (burst > 0),
  add column tokens double precision,
  add column tokens_at bigint,
  add column backlog_limit integer check (backlog_limit > 0),
  add column limit_key text,
  add column slowed boolean generated always as (paused or rate is not null) stored,
  add column guarded boolean generated always as (not accepting or backlog_limit is not null or limit_key is not null) stored;
create index lanes_slowed on lanes (id) where slowed;
create index lanes_guarded on lanes (id) where guarded;

-- How many tasks with the key may be admitted at once. Admitted are those whose over-limit bit (1) is clear.
create table limits (
  namespace text not null,
  key text not null,
  max_running integer not null check (max_running > 0),
  by_operator boolean not null,
  primary key (namespace, key)
);

drop index tasks_limit;
create index tasks_admitted on tasks (namespace, limit_key) where limit_key is not null and (hold & 1) = 0;
create index tasks_over_limit on tasks (namespace, limit_key, priority, due_at, id)
  where limit_key is not null and hold = 1 and owner_id is null and wake_at is null;
-- Written so that no query is taken to mean this one by mistake, which would then sort all that waits for any key.
create index tasks_over_limit_lane on tasks (lane_id) where hold - 1 = 0 and owner_id is null and wake_at is null;

-- The task that an idempotency key identifies; the key has its own lifetime and may outlive the task.
create table dedupe (
  namespace text not null,
  key text not null,
  task_id uuid not null,
  expires_at bigint not null,
  primary key (namespace, key)
);
create index dedupe_expires on dedupe (expires_at);

-- Values over 8 KiB, once each; a value lives as long as a tree that uses it.
create table blobs (
  digest text primary key,
  value text not null
);
create table blob_uses (
  root_id uuid not null,
  digest text not null references blobs (digest),
  primary key (root_id, digest)
);
create index blob_uses_digest on blob_uses (digest);

-- Members of a tree other than its root.
create index tasks_root on tasks (root_id) where root_id <> id;
create index finished_root on finished (root_id) where root_id <> id;

-- A new UUIDv7.
create function treadle_new_id() returns uuid language sql volatile as $$
  select encode(set_byte(bytes, 6, get_byte(bytes, 6) & 15 | 112), 'hex')::uuid
  from (
    select overlay(uuid_send(gen_random_uuid())
      placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6) as bytes
  ) as made
$$;

-- Enqueue a task inside the caller's own transaction, from any driver; answers the id of the task that now stands for it.
-- Keys: name (required), payload (an object) or sealed (text after a codec), namespace, task_list, priority, delay_for,
-- unique_key, idempotency_key, idempotency_for, limit_key, policy, timeout_for, progress_for, deadline_for, trace_id, root_id, id.
-- Durations are in milliseconds. Raises 22023 for what cannot be used, TR001 for a list that drains, TR002 for a full lane.
create function treadle_enqueue_v1(spec json) returns uuid language plpgsql volatile set search_path from current as $$
declare
  now_at constant bigint := treadle_now();
  new_id constant uuid := coalesce((spec ->> 'id')::uuid, treadle_new_id());
  namespace_ constant text := coalesce(spec ->> 'namespace', 'default');
  task_list_ constant text := coalesce(spec ->> 'task_list', 'default');
  name_ constant text := spec ->> 'name';
  payload_ constant text := coalesce(spec ->> 'sealed', (spec -> 'payload')::text, '{}');
  delay_for constant bigint := coalesce((spec ->> 'delay_for')::bigint, 0);
  unique_ constant text := spec ->> 'unique_key';
  once constant text := spec ->> 'idempotency_key';
  lane record;
  key text := spec ->> 'limit_key';
  found_id uuid;
  problem text;
begin
  problem := coalesce((
    select 'the key ' || quote_literal(given) || ' is not known'
    from json_object_keys(spec) as given
    where given not in ('id', 'name', 'payload', 'sealed', 'namespace', 'task_list', 'priority', 'delay_for', 'unique_key',
      'idempotency_key', 'idempotency_for', 'limit_key', 'policy', 'timeout_for', 'progress_for', 'deadline_for', 'trace_id',
      'root_id')
    limit 1
  ), (
    select what || ' ' || quote_nullable(given) || ' is not a valid name'
    from (values ('name', name_), ('namespace', namespace_), ('task_list', task_list_)) as names (what, given)
    where given is null or length(given) > 200 or given !~ '^[A-Za-z_][A-Za-z0-9_]*([.:/-][A-Za-z0-9_]+)*$'
    limit 1
  ), (
    select what || ' must be 1 to 512 characters, none of them a control character'
    from (values ('unique_key', unique_), ('idempotency_key', once), ('limit_key', key), ('trace_id', spec ->> 'trace_id'))
      as keys (what, given)
    where length(given) not between 1 and 512 or given ~ '[\x01-\x1f\x7f]'
    limit 1
  ), (
    select what || ' must be a duration in milliseconds, ' || smallest || ' or more'
    from (values ('delay_for', delay_for, 0), ('timeout_for', (spec ->> 'timeout_for')::bigint, 1),
      ('progress_for', (spec ->> 'progress_for')::bigint, 1), ('deadline_for', (spec ->> 'deadline_for')::bigint, 1),
      ('idempotency_for', (spec ->> 'idempotency_for')::bigint, 1)) as durations (what, given, smallest)
    where given < smallest or given > 100000000000000
    limit 1
  ), (
    select 'the policy has the unknown key ' || quote_literal(given)
    from json_object_keys(coalesce(nullif((spec -> 'policy')::text, 'null')::json, '{}')) as given
    where given not in ('retries', 'first_for', 'factor', 'cap_for', 'jitter')
    limit 1
  ));
  if problem is null and spec ->> 'sealed' is null and json_typeof(coalesce(spec -> 'payload', '{}')) <> 'object' then
    problem := 'the payload must be an object';
  end if;
  if problem is null and coalesce((spec ->> 'priority')::integer, 0) not between -1000000 and 1000000 then
    problem := 'priority must be from -1000000 to 1000000';
  end if;
  if problem is not null then
    raise exception 'treadle_enqueue_v1: %', problem using errcode = '22023';
  end if;
  perform spec::jsonb; -- refuses U+0000 and half surrogate pairs, which no store keeps

  if once is not null then
    insert into dedupe as d (namespace, key, task_id, expires_at)
    values (namespace_, once, new_id, now_at + coalesce((spec ->> 'idempotency_for')::bigint, 604800000))
    on conflict on constraint dedupe_pkey do update
    set task_id = excluded.task_id, expires_at = excluded.expires_at
    where d.expires_at <= now_at
    returning d.task_id into found_id;
    if found_id is null then
      select d.task_id into found_id from dedupe as d where d.namespace = namespace_ and d.key = once;
      if found_id is null then
        raise exception 'treadle_enqueue_v1: the idempotency key % changed hands meanwhile; try again', once using errcode = '40001';
      end if;
      return found_id;
    end if;
  end if;

  select l.* into lane
  from lanes as l
  where l.namespace = namespace_ and l.kind = 'handler' and l.task_list = task_list_ and l.name = name_;
  if lane.id is null then
    lock table lists in share row exclusive mode;
    insert into lanes (namespace, kind, task_list, name, paused, accepting, limit_key)
    select namespace_, 'handler', task_list_, name_, coalesce(said.paused, false), coalesce(said.accepting, true), m.key
    from (select) as one
    left join lists as said on said.namespace = namespace_ and said.task_list = task_list_
    left join limits as m on m.namespace = namespace_ and m.key = 'handler:' || name_ and m.by_operator
    on conflict do nothing;
    select l.* into strict lane
    from lanes as l
    where l.namespace = namespace_ and l.kind = 'handler' and l.task_list = task_list_ and l.name = name_;
  end if;
  if not lane.accepting then
    raise exception 'treadle_enqueue_v1: the task list % takes no new work', task_list_ using errcode = 'TR001';
  end if;
  if lane.backlog_limit is not null and delay_for = 0 then
    perform from lanes as l where l.id = lane.id for no key update;
    if (
      select count(*)
      from (
        select from tasks as t
        where t.lane_id = lane.id and t.owner_id is null and t.wake_at is null and t.hold in (0, 1)
        limit lane.backlog_limit
      ) as waiting
    ) >= lane.backlog_limit then
      raise exception 'treadle_enqueue_v1: % tasks of % wait already, which is the cap', lane.backlog_limit, name_
        using errcode = 'TR002';
    end if;
  end if;
  key := coalesce(key, lane.limit_key);

  for attempt in 1 .. 5 loop
    -- With a limit key it waits to be admitted, which workers do for it within a second.
    insert into tasks (id, lane_id, namespace, priority, due_at, hold, state, wake_at, claim_version, attempt, failures, takeovers,
      version, created_at, deadline_at, timeout_for, progress_for, root_id, trace_id, limit_key, unique_key, policy, payload)
    select new_id, lane.id, namespace_, coalesce((spec ->> 'priority')::integer, 0), now_at + delay_for,
      (key is not null)::integer, 'pending', case when delay_for > 0 then now_at + delay_for end, 0, 1, 0, 0,
      0, now_at, now_at + (spec ->> 'deadline_for')::bigint, (spec ->> 'timeout_for')::bigint, (spec ->> 'progress_for')::bigint,
      coalesce((spec ->> 'root_id')::uuid, new_id), spec ->> 'trace_id', key, unique_, nullif((spec -> 'policy')::text, 'null'), payload_
    where not exists (select from finished as f where f.id = new_id)
    on conflict do nothing
    returning id into found_id;
    if not found then
      select t.id into found_id from tasks as t where t.id = new_id;
      if not found then
        select f.id into found_id from finished as f where f.id = new_id;
      end if;
      if not found then
        select t.id into found_id from tasks as t where t.namespace = namespace_ and t.unique_key = unique_;
        if found and once is not null then
          update dedupe as d set task_id = found_id where d.namespace = namespace_ and d.key = once;
        end if;
      end if;
    end if;
    if found_id is not null then
      return found_id;
    end if;
  end loop;
  raise exception 'treadle_enqueue_v1: the unique key % changed hands meanwhile; try again', unique_ using errcode = '40001';
end
$$;

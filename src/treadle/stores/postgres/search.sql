-- name: list_tags(ids)
-- List the tags of the runs and tasks $1.
select owner_id::text, key, value from tags where owner_id = any ($1::uuid[]);

-- name: list_tagged(namespace, entity, before_at, before_id, after, key, value, limit)
-- List the runs or tasks ($2) of a namespace ($1) with the tag $6 = $7, newest first, after ($3, $4), created at $5 or later.
select created_at, owner_id::text
from tags
where namespace = $1::text and entity = $2::text and key = $6::text and value = $7::text
  and (created_at, owner_id) < ($3::bigint, $4::uuid) and created_at >= $5::bigint
order by tags.created_at desc, tags.owner_id desc
limit $8::bigint;

-- name: list_tag_keys(namespace, entity, limit)
-- List keys of the tags of runs or tasks ($2) of a namespace ($1), by jumping from one to the next in the index.
with recursive found (key) as (
  (select key from tags where namespace = $1::text and entity = $2::text order by key limit 1)
  union all
  select (select key from tags where namespace = $1::text and entity = $2::text and key > found.key order by key limit 1)
  from found
  where found.key is not null
)
select key from found where key is not null limit $3::bigint;

-- name: list_some_runs_with_words(namespace, entity, before_at, before_id, after, words, limit) on lists
-- List runs whose error has the words $6, in any order. (`coalesce` and `+ 0` leave only the index of words.)
select created_at, id::text
from runs
where treadle_words(error) @@ $6::text::tsquery and error is not null and coalesce(namespace, '') = $1::text and $2::text = 'run'
  and (created_at + 0, id) < ($3::bigint, $4::uuid) and created_at + 0 >= $5::bigint
limit $7::bigint;

-- name: list_new_runs_with_words(namespace, entity, before_at, before_id, after, words, limit, part, newest) on lists
-- List runs whose error has the words $6, newest first, among the $9 newest errors; $8 is a part of each of these errors.
select created_at, id::text
from (
  select created_at, id, error
  from runs
  where error is not null and namespace = $1::text and $2::text = 'run'
    and (created_at, id) < ($3::bigint, $4::uuid) and created_at >= $5::bigint
  order by created_at desc, id desc
  limit $9::bigint
) as newest
where strpos(lower(error collate "C"), $8::text) > 0 and treadle_words(error) @@ $6::text::tsquery
order by newest.created_at desc, newest.id desc
limit $7::bigint;

-- name: list_runs_with_words(namespace, entity, before_at, before_id, after, words, limit) on lists
-- List runs whose error has the words $6, newest first.
select created_at, id::text
from runs
where treadle_words(error) @@ $6::text::tsquery and error is not null and coalesce(namespace, '') = $1::text and $2::text = 'run'
  and (created_at + 0, id) < ($3::bigint, $4::uuid) and created_at + 0 >= $5::bigint
order by runs.created_at + 0 desc, runs.id desc
limit $7::bigint;

-- name: list_some_tasks_with_words(namespace, entity, before_at, before_id, after, words, limit) on lists
-- List ended tasks whose error has the words $6, in any order.
select created_at, id::text
from treadle_some_with_words($1::text, $3::bigint, $4::uuid, $5::bigint, $6::text::tsquery, $7::bigint)
where $2::text = 'task';

-- name: list_new_tasks_with_words(namespace, entity, before_at, before_id, after, words, limit, part, newest) on lists
-- List ended tasks whose error has the words $6, newest first, among the $9 newest errors; $8 is a part of each of these errors.
select created_at, id::text
from (
  select created_at, id, error
  from finished
  where error is not null and namespace = $1::text and $2::text = 'task'
    and (created_at, id) < ($3::bigint, $4::uuid) and created_at >= $5::bigint
  order by created_at desc, id desc
  limit $9::bigint
) as newest
where strpos(lower(error collate "C"), $8::text) > 0 and treadle_words(error) @@ $6::text::tsquery
order by newest.created_at desc, newest.id desc
limit $7::bigint;

-- name: list_tasks_with_words(namespace, entity, before_at, before_id, after, words, limit) on lists
-- List ended tasks whose error has the words $6, newest first.
select created_at, id::text
from finished
where treadle_words(error) @@ $6::text::tsquery and error is not null and coalesce(namespace, '') = $1::text and $2::text = 'task'
  and (created_at + 0, id) < ($3::bigint, $4::uuid) and created_at + 0 >= $5::bigint
order by finished.created_at + 0 desc, finished.id desc
limit $7::bigint;

-- name: list_failing_tasks(namespace, entity, before_at, before_id, after, limit)
-- List live tasks with an error, newest first.
select created_at, id::text
from tasks
where error is not null and namespace = $1::text and $2::text = 'task'
  and (created_at, id) < ($3::bigint, $4::uuid) and created_at >= $5::bigint
order by tasks.created_at desc, tasks.id desc
limit $6::bigint;

-- name: list_run_names(prefix, limit)
-- List names of workflows and functions with the prefix $1, by jumping from one to the next in the index.
with recursive found (name) as (
  (select workflow collate "C" from runs where workflow collate "C" >= $1::text order by workflow collate "C" limit 1)
  union all
  select (select workflow collate "C" from runs where workflow collate "C" > found.name order by workflow collate "C" limit 1)
  from found
  where found.name is not null
)
select name from found where name is not null and starts_with(name, $1::text) limit $2::bigint;

-- name: list_run_ids(namespace, first, last, limit) on lists
-- List runs by the range of their ids. (`coalesce` prevents the use of the index by state.)
select id::text
from runs
where id between $2::uuid and $3::uuid and coalesce(namespace, '') = $1::text
order by id desc
limit $4::bigint;

-- name: list_task_ids(namespace, first, last, limit) on lists
-- List live and finished tasks by the range of their ids.
select id::text
from (
  (select id from tasks where id between $2::uuid and $3::uuid and namespace = $1::text order by id desc limit $4::bigint)
  union all
  (select id from finished where id between $2::uuid and $3::uuid and namespace = $1::text order by id desc limit $4::bigint)
) as found
order by id desc
limit $4::bigint;

-- name: list_step_ids(namespace, first, last, limit) on lists
-- List steps by the range of their ids.
select s.id::text
from steps as s join runs as r on r.id = s.run_id
where s.id between $2::uuid and $3::uuid and r.namespace = $1::text
order by s.id desc
limit $4::bigint;

-- name: list_record_ids(namespace, first, last, limit, entity) on lists
-- List records of the entity $5 by the range of their ids.
select id::text
from records
where id between $2::uuid and $3::uuid and coalesce(namespace, '') = $1::text and entity = $5::text
order by id desc
limit $4::bigint;

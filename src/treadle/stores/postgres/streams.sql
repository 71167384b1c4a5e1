-- name: find_heads(*rows)
-- Create the streams $1 to $4 (owners, names, namespaces, roots) that do not exist, lock all of them, and return their heads.
insert into streams (owner_id, name, namespace, root_id, created_at, updated_at)
select owner_id, name, namespace, root_id, (select treadle_now()), (select treadle_now())
from unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[]) as given (owner_id, name, namespace, root_id)
on conflict (owner_id, name) do update set updated_at = excluded.updated_at
returning owner_id::text, name, next_offset, bytes, truncated;

-- name: find_lasts(*rows)
-- Read the last chunks of the writers $3 of the streams $1, $2.
select given.owner_id::text, given.name, given.writer, last.*
from unnest($1::uuid[], $2::text[], $3::text[]) as given (owner_id, name, writer)
cross join lateral (
  select first_offset, session, case when kind = 'entries' then start + count else start end, generation, since, bytes, continues
  from stream_chunks as c
  where c.owner_id = given.owner_id and c.name = given.name and c.writer = given.writer
  order by c.first_offset desc
  limit 1
) as last;

-- name: find_next_entry(owner_id, name, writer)
-- Read the number of entries of the writer $3 of the stream $1, $2.
select case when kind = 'entries' then start + count else start end
from stream_chunks
where owner_id = $1::uuid and name = $2::text and writer = $3::text
order by first_offset desc
limit 1;

-- name: put_chunks(*heads, *chunks)
-- Replace the heads of the streams $1, $2 (next offsets, bytes, truncated), and insert chunks.
with heads as (
  update streams
  set next_offset = given.next_offset, bytes = given.bytes, truncated = given.truncated
  from unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::boolean[]) as given (owner_id, name, next_offset, bytes, truncated)
  where streams.owner_id = given.owner_id and streams.name = given.name
)
insert into stream_chunks (owner_id, name, first_offset, count, kind, writer, session, start, generation, since, bytes, continues, entries,
  created_at)
select given.*, (select treadle_now())
from unnest($6::uuid[], $7::text[], $8::bigint[], $9::integer[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::integer[],
  $15::bigint[], $16::bigint[], $17::boolean[], $18::text[]) as given;

-- name: continue_chunk(owner_id, name, first_offset)
-- Mark a chunk ($1 owner, $2 name, $3 first offset) as continued by the next session.
update stream_chunks set continues = true where owner_id = $1::uuid and name = $2::text and first_offset = $3::bigint;

-- name: remove_generations(owner_id, name, writer, keep)
-- Remove the generations before $4 of a writer ($1 owner, $2 name, $3 writer).
delete from stream_chunks where owner_id = $1::uuid and name = $2::text and writer = $3::text and generation < $4::integer;

-- name: list_streams(ids)
-- List the streams of the owners $1.
select owner_id::text, name, namespace, root_id::text, next_offset, bytes, truncated, created_at, updated_at
from streams where owner_id = any ($1::uuid[]) order by owner_id, name;

-- name: list_chunks(owner_id, name, offset, limit)
-- List up to $4 chunks of a stream ($1 owner, $2 name) from the offset $3 on.
select first_offset, count, kind, writer, generation, entries, created_at
from stream_chunks
where owner_id = $1::uuid and name = $2::text
  and first_offset >= coalesce(
    (
      select max(c.first_offset) from stream_chunks as c
      where c.owner_id = $1::uuid and c.name = $2::text and c.first_offset <= $3::bigint
    ),
    0
  )
order by first_offset
limit $4::bigint;

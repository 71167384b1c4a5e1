-- name: find_heads
-- Create streams (owner, name, namespace, root) that do not exist, and return the heads of all.
insert into streams (owner_id, name, namespace, root_id, created_at, updated_at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, :now, :now
from jsonb_each(:rows) as r
where true
on conflict (owner_id, name) do update set updated_at = excluded.updated_at
returning owner_id, name, next_offset, bytes, truncated;

-- name: find_lasts
-- Read the last chunks of writers (owner, name, writer).
select c.owner_id, c.name, c.writer, c.first_offset, c.session, iif(c.kind = 'entries', c.start + c.count, c.start), c.generation,
  c.since, c.bytes, c.continues
from jsonb_each(:rows) as r
  cross join stream_chunks as c on c.owner_id = r.value ->> 0 and c.name = r.value ->> 1 and c.first_offset = (
    select last.first_offset
    from stream_chunks as last
    where last.owner_id = r.value ->> 0 and last.name = r.value ->> 1 and last.writer = r.value ->> 2
    order by last.first_offset desc
    limit 1
  );

-- name: find_next_entry
-- Read the number of entries of a writer.
select iif(kind = 'entries', start + count, start)
from stream_chunks
where owner_id = :owner_id and name = :name and writer = :writer
order by first_offset desc
limit 1;

-- name: put_chunks
-- Replace the heads of streams (owner, name, next offset, bytes, truncated), and insert chunks.
update streams
set next_offset = r.value ->> 2, bytes = r.value ->> 3, truncated = r.value ->> 4
from jsonb_each(:heads) as r
where streams.owner_id = r.value ->> 0 and streams.name = r.value ->> 1;
insert into stream_chunks (owner_id, name, first_offset, count, kind, writer, session, start, generation, since, bytes, continues, entries, created_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8, value ->> 9,
  value ->> 10, value ->> 11, value ->> 12, :now
from jsonb_each(:chunks);

-- name: continue_chunk
-- Mark a chunk as continued by the next session.
update stream_chunks set continues = 1 where owner_id = :owner_id and name = :name and first_offset = :first_offset;

-- name: remove_generations
-- Remove abandoned generations of a writer.
delete from stream_chunks
where owner_id = :owner_id and name = :name and writer = :writer and generation < :keep;

-- name: list_streams
-- List streams of owners.
select s.* from json_each(:ids) as w cross join streams as s on s.owner_id = w.value order by s.owner_id, s.name;

-- name: list_chunks
-- List the chunks of a stream from an offset on.
select first_offset, count, kind, writer, generation, entries, created_at
from stream_chunks
where owner_id = :owner_id and name = :name
  and first_offset >= coalesce(
    (
      select max(c.first_offset)
      from stream_chunks as c
      where c.owner_id = :owner_id and c.name = :name and c.first_offset <= :offset
    ),
    0
  )
order by first_offset
limit :limit;

-- name: find_heads
-- Read streams by owner and name.
select s.owner_id, s.name, s.next_offset, s.bytes, s.truncated
from json_each(:rows) as w cross join streams as s on s.owner_id = w.value ->> 0 and s.name = w.value ->> 1;

-- name: find_last
-- Read the last chunk of a writer.
select first_offset, session, iif(kind = 'entries', start + count, start), generation, since, bytes, continues
from stream_chunks
where owner_id = :owner_id and name = :name and writer = :writer
order by first_offset desc
limit 1;

-- name: find_next_entry
-- Read the number of entries of a writer.
select iif(kind = 'entries', start + count, start)
from stream_chunks
where owner_id = :owner_id and name = :name and writer = :writer
order by first_offset desc
limit 1;

-- name: put_heads
-- Insert or replace the heads of streams.
insert into streams (owner_id, name, namespace, root_id, next_offset, bytes, truncated, created_at, updated_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, :now, :now from json_each(:rows) where true
on conflict (owner_id, name) do update
set next_offset = excluded.next_offset, bytes = excluded.bytes, truncated = excluded.truncated, updated_at = excluded.updated_at;

-- name: put_chunks
-- Insert chunks.
insert into stream_chunks (owner_id, name, first_offset, count, kind, writer, session, start, generation, since, bytes, continues, entries, created_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8, value ->> 9,
  value ->> 10, value ->> 11, value ->> 12, :now
from json_each(:rows);

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

-- Streams: entries that attempts append for readers, in chunks; they go with their tree.

create table streams (
  owner_id text not null,
  name text not null,
  namespace text not null,
  root_id text not null,
  next_offset integer not null default 0,
  bytes integer not null default 0,
  truncated integer not null default 0,
  created_at integer not null,
  updated_at integer not null,
  primary key (owner_id, name)
) strict, without rowid;

create index streams_root on streams (root_id);

create table stream_chunks (
  owner_id text not null,
  name text not null,
  first_offset integer not null,
  count integer not null,
  kind text not null check (kind in ('entries', 'abandoned', 'truncated')),
  writer text not null,
  session text not null,
  start integer not null,
  generation integer not null,
  since integer not null,
  bytes integer not null,
  continues integer not null,
  entries text not null,
  created_at integer not null,
  primary key (owner_id, name, first_offset)
) strict;

create index stream_chunks_writer on stream_chunks (owner_id, name, writer, first_offset);

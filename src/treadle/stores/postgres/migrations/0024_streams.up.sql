-- Streams: entries that attempts append for readers, in chunks; they go with their tree.

create table streams (
  owner_id uuid not null,
  name text collate "C" not null,
  namespace text not null,
  root_id uuid not null,
  next_offset bigint not null default 0,
  bytes bigint not null default 0,
  truncated boolean not null default false,
  created_at bigint not null,
  updated_at bigint not null,
  primary key (owner_id, name)
) with (fillfactor = 80);

create index streams_root on streams (root_id);

create table stream_chunks (
  owner_id uuid not null,
  name text collate "C" not null,
  first_offset bigint not null,
  count integer not null,
  kind text not null check (kind in ('entries', 'abandoned', 'truncated')),
  writer text not null,
  session text not null,
  start bigint not null,
  generation integer not null,
  since bigint not null,
  bytes bigint not null,
  continues boolean not null,
  entries text not null,
  created_at bigint not null,
  primary key (owner_id, name, first_offset)
);

create index stream_chunks_writer on stream_chunks (owner_id, name, writer, first_offset);

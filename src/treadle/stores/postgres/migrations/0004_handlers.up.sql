-- Handlers that runners load by themselves, and columns of agents' servers.

create table handler_registrations (
  namespace text not null,
  facet_name text not null,
  module_uri text not null,
  entrypoint text not null,
  version text not null,
  checksum text not null,
  timeout_for bigint not null,
  requirements text not null,
  metadata text not null,
  created_at bigint not null,
  updated_at bigint not null,
  primary key (namespace, facet_name)
);

alter table servers add column server_group text not null default 'default';
alter table servers add column service_name text not null default '';
alter table servers add column topics text not null default '[]';
alter table servers add column counts text not null default '{}';
alter table servers add column error text;

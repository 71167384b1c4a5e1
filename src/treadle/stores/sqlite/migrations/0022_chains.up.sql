-- The chain of runs that `continue_as_new` makes: the id of its first run, and the number of the link.

alter table runs add column chain_id text;
alter table runs add column link integer not null default 0;
create unique index runs_chain on runs (chain_id, link) where chain_id is not null;

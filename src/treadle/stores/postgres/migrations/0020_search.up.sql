-- Search: tags, the words of errors, and lists in order of creation.

create table tags (
  owner_id uuid not null,
  key text not null,
  value text collate "C" not null,
  entity text not null check (entity in ('run', 'task')),
  namespace text not null,
  created_at bigint not null,
  primary key (owner_id, key)
);

create index tags_value on tags (namespace, entity, key, value, created_at, owner_id);

-- The words of an error (JSON): of its code, and of the beginning of its message. Any other text has none.
create function treadle_words(error text) returns tsvector language plpgsql immutable cost 100 as $$
declare
  found jsonb;
begin
  if left(error, 1) <> '{' then
    return ''::tsvector;
  end if;
  found := error::jsonb;
  return array_to_tsvector(array(
    select distinct left(word, 64)
    from regexp_split_to_table(
      translate(left(coalesce(found ->> 'code', '') || ' ' || coalesce(found ->> 'message', ''), 2000),
        'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz'),
      '[\x01-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]+') as word
    where word <> ''
  ));
exception when others then
  return ''::tsvector;
end
$$;

create index runs_created on runs (created_at, id);
create index runs_workflow on runs (workflow collate "C", created_at, id);
create index runs_error on runs (namespace, created_at, id) where error is not null;
create index runs_words on runs using gin (treadle_words(error)) where error is not null;
create index finished_created on finished (created_at, id);
create index finished_error on finished (namespace, created_at, id) where error is not null;
create index finished_words on finished using gin (treadle_words(error)) where error is not null;

create function treadle_forget_tags() returns trigger language plpgsql as $$
begin
  delete from tags where owner_id = old.id;
  return null;
end
$$;

create trigger tags_go_with_their_run after delete on runs for each row execute function treadle_forget_tags();

create index runs_state_created on runs (namespace, state, created_at, id);
-- The indexes of live tasks come after the large ones, because each locks out claims and renewals until the transaction ends.
create index tasks_created on tasks (created_at, id);
create index tasks_error on tasks (created_at, id) where error is not null;
-- The old index is dropped last, because that locks out all readers until the transaction ends.
drop index runs_state;
alter index runs_state_created rename to runs_state;

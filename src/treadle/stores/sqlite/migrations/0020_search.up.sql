-- Search: tags, the words of errors, and lists in order of creation.

create table tags (
  owner_id text not null,
  key text not null,
  value text not null,
  entity text not null check (entity in ('run', 'task')),
  namespace text not null,
  created_at integer not null,
  primary key (owner_id, key)
) strict, without rowid;

create index tags_value on tags (namespace, entity, key, value, created_at, owner_id);

create index runs_created on runs (created_at, id);
create index runs_workflow on runs (workflow, created_at, id);
drop index runs_state;
create index runs_state on runs (namespace, state, created_at, id);
create index tasks_created on tasks (created_at, id);
create index tasks_error on tasks (created_at, id) where error is not null;
create index finished_created on finished (created_at, id);

-- The errors of ended runs and tasks. The rowid rises with the time of creation, so the index of their words is read newest first.
create table error_texts (
  number integer primary key,
  owner_id text not null unique,
  entity text not null,
  namespace text not null,
  created_at integer not null,
  words text not null
) strict;

create virtual table error_words using fts5 (words, content='error_texts', content_rowid='number', tokenize='ascii');

create trigger error_texts_add_words after insert on error_texts begin
  insert into error_words (rowid, words) values (new.number, new.words);
end;

create trigger error_texts_drop_words after delete on error_texts begin
  insert into error_words (error_words, rowid, words) values ('delete', old.number, old.words);
end;

create view new_error_texts (owner_id, entity, namespace, created_at, error) as
select id, 'run', namespace, created_at, error from runs where error is not null
union all
select id, 'task', namespace, created_at, error from finished where error is not null;

create trigger new_error_texts_are_kept instead of insert on new_error_texts begin
  delete from error_texts where owner_id = new.owner_id;
  insert into error_texts (number, owner_id, entity, namespace, created_at, words)
  select
    coalesce(
      (select max(number) + 1 from error_texts where number >= new.created_at << 20 and number < (new.created_at + 1) << 20),
      new.created_at << 20),
    new.owner_id, new.entity, new.namespace, new.created_at,
    substr(coalesce(new.error ->> '$.code', '') || ' ' || coalesce(new.error ->> '$.message', ''), 1, 2000)
  where json_valid(new.error) and json_type(new.error) = 'object';
end;

create trigger runs_keep_error_texts after update of error on runs when new.error is not null and new.error is not old.error begin
  insert into new_error_texts (owner_id, entity, namespace, created_at, error)
  values (new.id, 'run', new.namespace, new.created_at, new.error);
end;

create trigger runs_drop_error_texts after update of error on runs when new.error is null and old.error is not null begin
  delete from error_texts where owner_id = new.id;
end;

create trigger runs_drop_search after delete on runs begin
  delete from error_texts where owner_id = old.id;
  delete from tags where owner_id = old.id;
end;

create trigger finished_keep_error_texts after insert on finished when new.error is not null begin
  insert into new_error_texts (owner_id, entity, namespace, created_at, error)
  values (new.id, 'task', new.namespace, new.created_at, new.error);
end;

create trigger finished_drop_error_texts after delete on finished when old.error is not null begin
  delete from error_texts where owner_id = old.id;
end;

insert into new_error_texts (owner_id, entity, namespace, created_at, error)
select owner_id, entity, namespace, created_at, error from new_error_texts;

-- Namespaces that were moved to another store, whose work may not change here any more. The triggers that refuse changes exist only
-- while there are such namespaces.

create table moved_namespaces (
  namespace text primary key,
  moved_at integer not null
) strict, without rowid;

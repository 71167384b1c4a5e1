-- Count finished tasks by state as they come and go, so that a long history need not be counted. (PostgreSQL: partitions.)

create table finished_counts (
  state text primary key,
  count integer not null
) strict, without rowid;

insert into finished_counts (state, count) values ('completed', 0), ('failed', 0), ('canceled', 0), ('ignored', 0);
update finished_counts set count = (select count(*) from finished where finished.state = finished_counts.state);

create trigger finished_count_in after insert on finished begin
  update finished_counts set count = count + 1 where state = new.state;
end;

create trigger finished_count_out after delete on finished begin
  update finished_counts set count = count - 1 where state = old.state;
end;

create trigger finished_count_on after update of state on finished when old.state <> new.state begin
  update finished_counts set count = count - 1 where state = old.state;
  update finished_counts set count = count + 1 where state = new.state;
end;

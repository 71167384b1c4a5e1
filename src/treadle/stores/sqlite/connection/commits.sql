-- name: count_commit
-- Count a commit and set its instant; the first one also draws the database's own bits. `seqs` has one page, which settlements write anyway.
insert into seqs (name, value) values ('commit', ((abs(random() % 4194303) + 1) << 40) + 1), ('commit_at', :now)
on conflict (name) do update set value = case excluded.name when 'commit' then seqs.value + 1 else excluded.value end
returning name, value;

-- name: read_count
-- Return the number of the last commit and its instant; no rows before the first.
select name, value from seqs where name in ('commit', 'commit_at');

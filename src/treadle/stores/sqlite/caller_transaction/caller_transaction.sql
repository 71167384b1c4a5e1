-- name: list_references
-- List the tables that foreign keys of a table refer to.
select "table" from pragma_foreign_key_list(:table);

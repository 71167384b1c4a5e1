-- Removes all tokens and sessions: nobody can say any more who may do what.
delete from log where entity in ('token', 'session');
delete from records where entity in ('token', 'session');
delete from legal_moves where entity in ('token', 'session');

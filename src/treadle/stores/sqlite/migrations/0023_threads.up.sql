-- Threads: checkpoints of agent frameworks, as items of a record.

insert into legal_moves (entity, from_state, to_state) values ('thread', 'kept', 'removed');

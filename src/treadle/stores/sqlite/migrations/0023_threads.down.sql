-- Removes threads with their checkpoints.
delete from legal_moves where entity = 'thread';
delete from records where entity = 'thread';

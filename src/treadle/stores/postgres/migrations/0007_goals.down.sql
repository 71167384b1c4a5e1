-- Objectives and all that they led to stay, but can make no move any more.
drop trigger records_written_once on records;
drop function treadle_written_once();
delete from legal_moves where entity in ('objective', 'readiness_event', 'workorder');

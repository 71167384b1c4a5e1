drop table stream_chunks;
drop table streams;

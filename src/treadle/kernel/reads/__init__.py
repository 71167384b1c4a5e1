"""The read service behind every interface: tasks, events, throughput and scaling."""

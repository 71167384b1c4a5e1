-- Tokens and sessions: the moves of their records.

insert into legal_moves (entity, from_state, to_state) values
  ('token', 'new', 'active'), ('token', 'active', 'revoked'), ('token', 'active', 'expired'),
  ('session', 'new', 'open'), ('session', 'open', 'closed'), ('session', 'open', 'expired');

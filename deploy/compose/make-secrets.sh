#!/bin/sh
# Create secrets/ beside the compose file, once: a random password and the URL of the store that contains it.
set -eu
cd "$(dirname "$0")"
mkdir -m 700 secrets
password=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
printf '%s' "$password" > secrets/postgres_password
printf 'postgresql://treadle:%s@postgres:5432/treadle' "$password" > secrets/store_url
# Readable inside the containers, whose users are other than yours; the folder's mode keeps other users of this machine out.
chmod 644 secrets/*

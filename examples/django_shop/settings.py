"""Settings of the shop. The store of Treadle is in the shop's own database."""

import os

import psycopg

_DATABASE = psycopg.conninfo.conninfo_to_dict(os.environ["DATABASE_URL"])  # noqa: TID251

SECRET_KEY = "an example"
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
INSTALLED_APPS = ["shop", "treadle.integrations.django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _DATABASE["dbname"],
        "USER": _DATABASE.get("user", ""),
        "PASSWORD": _DATABASE.get("password", ""),
        "HOST": _DATABASE.get("host", ""),
        "PORT": _DATABASE.get("port", ""),
    }
}
TREADLE = {"NOTIFY": True}

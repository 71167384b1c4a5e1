"""The tables of the shop."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Create orders and charges."""

    initial = True
    dependencies: list[tuple[str, str]] = []  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            "Order",
            [("id", models.BigAutoField(primary_key=True, serialize=False)), ("total", models.BigIntegerField())],
            {"db_table": "orders"},
        ),
        migrations.CreateModel(
            "Charge",
            [("order", models.OneToOneField("shop.Order", django.db.models.deletion.CASCADE, primary_key=True, serialize=False))],
            {"db_table": "charges"},
        ),
    ]

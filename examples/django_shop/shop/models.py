"""Orders, and the charges of orders."""

from django.db import models


class Order(models.Model):
    """An order of a customer."""

    total = models.BigIntegerField()

    class Meta:
        db_table = "orders"


class Charge(models.Model):
    """The charge of an order: one at most."""

    order = models.OneToOneField(Order, models.CASCADE, primary_key=True)

    class Meta:
        db_table = "charges"

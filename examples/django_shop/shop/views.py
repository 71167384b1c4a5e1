"""Views: an order and the task that charges it are stored in one transaction."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Charge, Order
from treadle.integrations.django import enqueue


@csrf_exempt
@require_POST
@transaction.atomic
def create_order(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(total=json.loads(request.body)["total"])
    enqueue("charge", {"order": order.pk})
    return JsonResponse({"id": order.pk}, status=201)


def show_order(request: HttpRequest, pk: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=pk)
    return JsonResponse({"id": pk, "total": order.total, "charged": Charge.objects.filter(order=order).exists()})

"""The worked examples of the language, as they stand in its description."""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "E1": r"""
// E1 arithmetic and text.
workflow Price(net: Double, qty: Long = 2) => (total: Double, label: String) andThen {
    yield Price(total = $.net * $.qty + 1.5, label = $.qty ++ " x " ++ $.net)
}
""",
    "E2": r"""
// E2 chain and fan-in.
facet Num(v: Long)
workflow Mix(n: Long) => (out: Long) andThen {
    left = Num(v = $.n * 2)
    right = Num(v = $.n - 7)
    both = Num(v = left.v % right.v)
    yield Mix(out = both.v)
}
""",
    "E3": r"""
// E3 facet body, step body overrides it.
facet Grow(by: Long) => (size: Long) andThen { yield Grow(size = $.by + 1) }
workflow Plant(by: Long) => (normal: Long, forced: Long) andThen {
    a = Grow(by = $.by)
    b = Grow(by = a.size) andThen { yield Grow(size = $.by * 50) }
    yield Plant(normal = a.size, forced = b.size)
}
""",
    "E4": r"""
// E4 three blocks, two of them scripts.
workflow Report(words: Json) => (count: Long, first: String, upper: Json) andThen script {
    result["count"] = len(params["words"])
} andThen {
    yield Report(first = $.words[0])
} andThen script {
    result["upper"] = [w.upper() for w in params["words"]]
}
""",
    "E5": r"""
// E5 the last block wins.
workflow Vote() => (winner: String, tally: Long) andThen { yield Vote(winner = "red", tally = 1) }
andThen { yield Vote(winner = "blue") }
""",
    "E6": r"""
// E6 foreach keeps the last element's values.
facet Parcel(kg: Long)
workflow Load(boxes: Json) => (heaviest: Long) andThen foreach box in $.boxes {
    p = Parcel(kg = $.box.kg + 1)
    yield Load(heaviest = p.kg)
}
""",
    "E7": r"""
// E7 implicit, default, argument.
facet Message(host: String = "local", retries: Long = 0, to: String)
implicit mail = Message(host = "relay")
workflow Send() => (a: String, b: String, r: Long) andThen {
    m1 = Message(to = "x")
    m2 = Message(to = "y", host = "direct")
    yield Send(a = m1.host, b = m2.host, r = m2.retries)
}
""",
    "E8": r"""
// E8 mixins at the call.
facet Budget(limit: Long, unit: String = "EUR")
facet Trip(city: String)
workflow Plan() => (flat: Long, nested: Json, city: String) andThen {
    t = Trip(city = "Oslo") with Budget(limit = 10, city = "Rome") with Budget(limit = 99) as cap
    yield Plan(flat = t.limit, nested = t.cap, city = t.city)
}
""",
    "E9": r"""
// E9 schema instances.
namespace shop {
    schema Line { sku: String, qty: Long }
    facet Pack(what: String, n: Long)
    workflow Order(sku: String) => (text: String) andThen {
        line = Line(sku = $.sku, qty = 3)
        p = Pack(what = line.sku, n = line.qty * 2)
        yield Order(text = p.n ++ " of " ++ p.what)
    }
}
""",
    "E10": r"""
// E10 two event steps.
namespace mill {
    event facet Grind(kilos: Long, fine: Boolean = true) => (flour: Long)
    workflow Bake(kilos: Long) => (loaves: Long) andThen {
        coarse = Grind(kilos = $.kilos, fine = false)
        fine = Grind(kilos = coarse.flour)
        yield Bake(loaves = fine.flour * 2)
    }
}
""",
    "E11": r"""
// E11 [N] event facet with pre-script and body.
namespace lab {
    event facet Measure(sample: String) => (value: Double, note: String)
    script { result["sample"] = params["sample"].strip() }
    andThen { yield Measure(note = "sample " ++ $.sample) }
    workflow Test(sample: String) => (v: Double, note: String) andThen {
        m = Measure(sample = $.sample)
        yield Test(v = m.value, note = m.note)
    }
}
""",
    "E12": r"""
// E12 a workflow as a step.
workflow Area(w: Long, h: Long = 4) => (a: Long) andThen { yield Area(a = $.w * $.h) }
workflow House() => (floor: Long) andThen {
    hall = Area(w = 3)
    room = Area(w = hall.a, h = 2)
    yield House(floor = hall.a + room.a)
}
""",
    "E13": r"""
// E13 [N] a step body sees outer steps, its owner and the owner's results.
namespace desk {
    event facet Translate(text: String) => (out: String, note: String)
    facet Tag(label: String)
    workflow Letter(text: String) => (final: String) andThen {
        tag = Tag(label = "draft")
        t = Translate(text = $.text) andThen { yield Translate(note = tag.label ++ ":" ++ t.out ++ ":" ++ $.text) }
        yield Letter(final = t.note)
    }
}
""",
    "E14": r"""
// E14 [N] the nearest namespace wins, also at run time.
namespace north { facet Greet() => (say: String) andThen { yield Greet(say = "hei") } }
namespace south {
    facet Greet() => (say: String) andThen { yield Greet(say = "ciao") }
    workflow Hello() => (word: String) andThen {
        g = Greet()
        yield Hello(word = g.say)
    }
}
""",
    "E15": r"""
// E15 [N] computed defaults, unary minus, null.
facet Cell(v: Json)
workflow Sheet(row: Json = [4, 5], shift: Long = -3) => (sum: Long, none: Json) andThen {
    a = Cell(v = $.row[1])
    b = Cell(v = -a.v + $.shift)
    c = Cell(v = null)
    yield Sheet(sum = b.v, none = c.v)
}
""",
    "E16": r"""
// E16 [N] a pre-script runs once and adds inputs; a called facet may have several blocks.
facet Both(n: Long) => (lo: Long, hi: Long) andThen { yield Both(lo = $.n - 1) } andThen { yield Both(hi = $.n + 1) }
workflow Range(text: String) => (lo: Long, hi: Long)
script { result["n"] = int(params["text"]) }
andThen {
    b = Both(n = $.n)
    yield Range(lo = b.lo, hi = b.hi)
}
""",
}

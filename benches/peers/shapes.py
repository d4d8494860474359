"""The work that a row's `shape` describes: sequences, pages and slots, laid out as by the suite's own programs."""
import dataclasses
import random

QKV_PAGE_SIZE = 256


def shuffled(count):
    ids = list(range(count))
    random.Random(7).shuffle(ids)
    return ids


def distinct_ids(count, n):
    """`count` ids below n: distinct, and from the first one again only where n are fewer."""
    ids = shuffled(n)
    return [ids[i % n] for i in range(count)]


def lengths_of(shape, one, many):
    """The list of the batch's lengths: `shape[one]` for all if they are equal, otherwise `shape[many]`."""
    return list(shape[many]) if many in shape else [shape[one]] * shape["batch"]


def ceil_div(a, b):
    return -(-a // b)


@dataclasses.dataclass
class PagedBatch:
    """Sequences over a pool of shuffled pages. The `shared` tokens at their beginning are in the same pages for all."""
    page_size: int
    lengths: list
    q_lengths: list
    shared: int = 0

    def __post_init__(self):
        own_pages = [ceil_div(length - self.shared, self.page_size) for length in self.lengths]
        shared_pages = ceil_div(self.shared, self.page_size)
        self.num_pages = shared_pages + sum(own_pages)
        ids = shuffled(self.num_pages)
        self.shared_pages, at, self.own_pages = ids[:shared_pages], shared_pages, []
        for count in own_pages:
            self.own_pages.append(ids[at:at + count])
            at += count

    @property
    def whole_shared_pages(self):
        """Whether a sequence's pages can be listed one after the other."""
        return self.shared % self.page_size == 0

    @property
    def uniform(self):
        """(q length, length) if all sequences have the same and share nothing, otherwise None."""
        equal = len(set(self.lengths)) == len(set(self.q_lengths)) == 1 and self.shared == 0
        return (self.q_lengths[0], self.lengths[0]) if equal else None

    def pages(self, sequence):
        return self.shared_pages + self.own_pages[sequence]

    def last_page_length(self, tokens):
        return (tokens - 1) % self.page_size + 1


def attention_batch(kernel, shape):
    """The PagedBatch of a row of chunk_decode, paged_prefill or paged_gather."""
    page_size = shape["page_size"]
    if kernel == "paged_prefill":
        return PagedBatch(page_size, lengths_of(shape, "kv_len", "kv_lens"), lengths_of(shape, "q_len", "q_lens"))
    if "shared" in shape:
        lengths = [shape["shared"] + shape["unique"]] * shape["batch"]
        return PagedBatch(page_size, lengths, [1] * shape["batch"], shape["shared"])
    lengths = lengths_of(shape, "len", "lens")
    return PagedBatch(page_size, lengths, [1] * len(lengths))


@dataclasses.dataclass
class AppendBatch:
    """Where new tokens go: token i to row `rows[i]` of page `pages[i]`, at position `positions[i]` of a sequence."""
    page_size: int
    num_pages: int
    pages: list
    rows: list
    positions: list
    sequences: int  # 1: all tokens are of one sequence; otherwise each is of another, of which this is the last page

    def tokens_of(self, page):
        return [token for token, at in enumerate(self.pages) if at == page]


def append_batch(tokens, sequences, page_size):
    if sequences == 1:
        ids = shuffled(ceil_div(tokens, page_size))
        pages = [ids[token // page_size] for token in range(tokens)]
        rows = [token % page_size for token in range(tokens)]
        return AppendBatch(page_size, len(ids), pages, rows, list(range(tokens)), 1)
    rows = [token % page_size for token in range(tokens)]
    return AppendBatch(page_size, tokens, shuffled(tokens), rows, list(range(tokens)), tokens)


def pick(count, wanted, seed):
    """`wanted` of the indices below `count`, ascending, the first and the last among them; all if there are fewer."""
    if count <= wanted:
        return list(range(count))
    return sorted({0, count - 1, *random.Random(seed).sample(range(1, count - 1), wanted - 2)})

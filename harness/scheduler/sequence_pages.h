// Maps the tokens of a sequence to the pages that hold their K and V. A sequence consists of runs
// of tokens. Each run has its own pages, and only the last page of a run may be partly filled. A
// new run begins where a shared chunk ends within a page.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/paged_kv_layout.h"

namespace tokline {

class SequencePages {
 public:
  explicit SequencePages(int32_t page_size) : split_(PagesOfSize(page_size)) {}

  void Clear() {
    pages_.clear();
    runs_.assign(1, {.first_token = 0, .first_page = 0});
  }

  int64_t NumPages() const { return static_cast<int64_t>(pages_.size()); }
  std::vector<int32_t>& Pages() { return pages_; }
  std::span<const int32_t> Pages() const { return pages_; }

  // Returns the total number of pages for `tokens` tokens. A new run begins at each cut that lies
  // before the end and within a page. The cuts must ascend.
  int64_t PagesFor(int64_t tokens, std::span<const int64_t> cuts) const {
    Run last = runs_.back();
    for (const int64_t cut : cuts) {
      if (Splits(last, cut, tokens)) last = After(last, cut);
    }
    return last.first_page + split_.PagesFor(tokens - last.first_token);
  }
  // Begins the runs that PagesFor counts. The caller appends the pages.
  void Cut(int64_t tokens, std::span<const int64_t> cuts) {
    for (const int64_t cut : cuts) {
      if (Splits(runs_.back(), cut, tokens)) runs_.push_back(After(runs_.back(), cut));
    }
  }

  // Returns the index in Pages() of the page that holds the token at this position.
  int64_t PageOf(int64_t position) const {
    const Run& run = RunOf(position);
    return run.first_page + split_.PageOf(position - run.first_token);
  }
  // Returns the slot of the KV cache for this position.
  int64_t SlotOf(int64_t position) const {
    const Run& run = RunOf(position);
    const int64_t at = position - run.first_token;
    const int32_t page = pages_[static_cast<size_t>(run.first_page + split_.PageOf(at))];
    return split_.SlotOf(page, split_.RowOf(at));
  }
  // Calls take(pages, tokens) for each run of the first `length` tokens.
  template <typename Take>
  void ForEachRun(int64_t length, Take&& take) const {
    for (size_t i = 0; i < runs_.size() && runs_[i].first_token < length; ++i) {
      const int64_t end =
          i + 1 < runs_.size() ? std::min(runs_[i + 1].first_token, length) : length;
      const int64_t tokens = end - runs_[i].first_token;
      take(Pages().subspan(static_cast<size_t>(runs_[i].first_page),
                           static_cast<size_t>(split_.PagesFor(tokens))),
           tokens);
    }
  }

 private:
  struct Run {
    int64_t first_token;
    int64_t first_page;
  };
  bool Splits(const Run& last, int64_t cut, int64_t tokens) const {
    return cut > last.first_token && cut < tokens && !split_.Fill(cut - last.first_token);
  }
  Run After(const Run& last, int64_t cut) const {
    return {cut, last.first_page + split_.PagesFor(cut - last.first_token)};
  }
  const Run& RunOf(int64_t position) const {
    size_t run = runs_.size() - 1;
    while (runs_[run].first_token > position) --run;
    return runs_[run];
  }

  PageSplit split_;
  std::vector<int32_t> pages_;
  std::vector<Run> runs_{{.first_token = 0, .first_page = 0}};
};

}  // namespace tokline

// Tests single decisions of the scheduler. scheduler_model_test tests long random runs.
#include "harness/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "harness/tests/message_of.h"

namespace tokline {
namespace {

using testing::MessageOf;

using ::testing::HasSubstr;

SchedulerOptions SmallOptions() {
  return {.num_pages = 8,
          .page_size = 4,
          .max_batch = 4,
          .max_context = 64,
          .token_budget = 64,
          .max_runs = 4};
}

SchedulerOptions ReusingOptions(int64_t num_pages = SmallOptions().num_pages) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = num_pages;
  options.reuse = true;
  return options;
}

Request Prompt(int64_t length, int64_t new_tokens, int32_t first = 0) {
  Request request;
  for (int64_t i = 0; i < length; ++i) request.prompt.push_back(first + static_cast<int32_t>(i));
  request.max_new_tokens = new_tokens;
  return request;
}

// Schedules a step and takes a token of each draw at once.
void RunStep(Scheduler& scheduler, int32_t token = 7) {
  std::vector<SequenceId> draws;
  const ScheduledStep& step = scheduler.ScheduleStep();
  for (const StepSlice& slice : step.decode) {
    if (slice.sequence != nullptr) draws.push_back(slice.sequence->id);
  }
  for (const StepSlice& slice : step.prefill) {
    if (slice.draws) draws.push_back(slice.sequence->id);
  }
  for (const SequenceId id : draws) scheduler.TakeToken(id, token);
}

TEST(SchedulerTest, RequestThatNeverFitsIsRefusedWithBothNumbers) {
  SchedulerOptions options = SmallOptions();
  options.max_pinned_pages = 3;
  Scheduler scheduler(options);
  const std::string message = MessageOf([&] { scheduler.Submit(Prompt(14, 8)); });
  EXPECT_THAT(message, HasSubstr("needs 6 pages"));
  EXPECT_THAT(message, HasSubstr("5 of 8"));
  scheduler.Submit(Prompt(14, 7));  // fits, because the last token is never fed
  EXPECT_EQ(scheduler.NumSequences(), 1);
  EXPECT_THAT(MessageOf([&] { scheduler.Submit(Prompt(60, 5)); }), HasSubstr("context of 64"));
}

TEST(SchedulerTest, BadRequestsAreRefused) {
  Scheduler scheduler(SmallOptions());
  EXPECT_THAT(MessageOf([&] { scheduler.Submit(Prompt(0, 1)); }), HasSubstr("empty"));
  EXPECT_THAT(MessageOf([&] { scheduler.Submit(Prompt(1, 0)); }), HasSubstr("is 0"));
  Request request = Prompt(4, 1);
  request.cuts = {3, 3};
  EXPECT_THAT(MessageOf([&] { scheduler.Submit(request); }), HasSubstr("cut at 3 after 3"));
  request.cuts = {5};
  EXPECT_THAT(MessageOf([&] { scheduler.Submit(request); }), HasSubstr("cut at 5"));
  EXPECT_FALSE(scheduler.HasWork());
}

TEST(SchedulerTest, PrefillSharesAStepWithDecodeWithinTheBudget) {
  SchedulerOptions options = SmallOptions();
  options.token_budget = 5;
  Scheduler scheduler(options);
  const SequenceId first = scheduler.Submit(Prompt(3, 9));
  const SequenceId second = scheduler.Submit(Prompt(9, 9));
  const ScheduledStep* step = &scheduler.ScheduleStep();
  ASSERT_EQ(step->prefill.size(), 2u);
  EXPECT_TRUE(step->prefill[0].draws);
  EXPECT_EQ(step->prefill[1].count, 2);
  EXPECT_FALSE(step->prefill[1].draws);
  step = &scheduler.ScheduleStep();  // before the token is known
  ASSERT_EQ(step->decode_rows, 1);
  EXPECT_EQ(step->decode[0].sequence->id, first);
  EXPECT_EQ(step->decode[0].begin, 3);
  ASSERT_EQ(step->prefill.size(), 1u);
  EXPECT_EQ(step->prefill[0].sequence->id, second);
  EXPECT_EQ(step->prefill[0].begin, 2);
  EXPECT_EQ(step->prefill[0].count, 5);
}

TEST(SchedulerTest, PromptsWaitAtTheirLimitAndGoOnWithoutIt) {
  SchedulerOptions options = SmallOptions();
  options.token_budget = 5;
  Scheduler scheduler(options);
  scheduler.LimitPrompts(3);
  scheduler.Submit(Prompt(7, 2));
  scheduler.Submit(Prompt(3, 2));
  const ScheduledStep* step = &scheduler.ScheduleStep();
  ASSERT_EQ(step->prefill.size(), 2u);
  EXPECT_EQ(step->prefill[0].count, 3);
  EXPECT_FALSE(step->prefill[0].draws);
  EXPECT_EQ(step->prefill[1].count, 2);
  step = &scheduler.ScheduleStep();
  ASSERT_EQ(step->prefill.size(), 1u);  // of the second, which is as long as the limit
  EXPECT_EQ(step->prefill[0].begin, 2);
  EXPECT_TRUE(step->prefill[0].draws);
  scheduler.LimitPrompts(INT64_MAX);
  step = &scheduler.ScheduleStep();
  ASSERT_EQ(step->prefill.size(), 1u);
  EXPECT_EQ(step->prefill[0].begin, 3);
  EXPECT_EQ(step->prefill[0].count, 4);
  EXPECT_TRUE(step->prefill[0].draws);
}

TEST(SchedulerTest, YoungestIsPreemptedAndComesBackWithItsTokens) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 5;
  Scheduler scheduler(options);
  const SequenceId old = scheduler.Submit(Prompt(4, 12));
  const SequenceId young = scheduler.Submit(Prompt(4, 12, 50));
  do RunStep(scheduler);
  while (scheduler.NumWaiting() == 0);
  EXPECT_EQ(scheduler.OldestRunning()->id, old);
  const Sequence& preempted = scheduler.Get(young);
  EXPECT_EQ(preempted.place, Sequence::Place::kWaiting);
  const int64_t known = preempted.Known();
  EXPECT_GT(known, 8);
  while (scheduler.Has(old)) RunStep(scheduler);
  const ScheduledStep& step = scheduler.ScheduleStep();
  ASSERT_EQ(step.prefill.size(), 1u);
  EXPECT_EQ(step.prefill[0].sequence->id, young);
  EXPECT_EQ(step.prefill[0].count, known);
  EXPECT_TRUE(step.prefill[0].draws);
  EXPECT_EQ(scheduler.Counts().recomputed_tokens, known - 1) << "the newest ran for the first time";
}

TEST(SchedulerTest, NobodyIsAdmittedOnPagesThatTheRunningWillTake) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 3;
  Scheduler scheduler(options);
  const SequenceId old = scheduler.Submit(Prompt(4, 8));  // 1 page now, 3 at its end
  RunStep(scheduler);
  RunStep(scheduler);
  const SequenceId young = scheduler.Submit(Prompt(4, 8, 50));
  EXPECT_EQ(scheduler.Pages().NumFree(), 1);
  while (scheduler.Has(old)) RunStep(scheduler);
  while (scheduler.Has(young)) RunStep(scheduler);
  EXPECT_EQ(scheduler.Counts().preemptions, 0);
}

TEST(SchedulerTest, SecondPromptReadsTheChunksOfTheFirstEvenInTheSameStep) {
  Scheduler scheduler(ReusingOptions());
  scheduler.Submit(Prompt(10, 4));
  scheduler.Submit(Prompt(11, 4));
  const ScheduledStep& step = scheduler.ScheduleStep();
  ASSERT_EQ(step.prefill.size(), 2u);
  EXPECT_EQ(step.prefill[1].begin, 8);
  EXPECT_EQ(step.prefill[1].count, 3);
  EXPECT_EQ(scheduler.Pages().NumFree(), 8 - 2 - 1 - 1);
  EXPECT_EQ(scheduler.Counts().reused_tokens, 8);
}

TEST(SchedulerTest, ChunkThatAnotherSealsMeanwhileIsNotComputedAgain) {
  SchedulerOptions options = ReusingOptions();
  options.token_budget = 1;
  Scheduler scheduler(options);
  scheduler.Submit(Prompt(8, 12));
  while (scheduler.Get(0).in_cache < 11) RunStep(scheduler, 90);
  Request same = Prompt(8, 1);  // continues with what the first has written and will write
  same.prompt.insert(same.prompt.end(), 8, 90);
  const SequenceId id = scheduler.Submit(same);
  RunStep(scheduler, 90);
  EXPECT_EQ(scheduler.Get(id).in_cache, 9);
  const ScheduledStep& step = scheduler.ScheduleStep();
  ASSERT_EQ(step.prefill.size(), 1u);
  EXPECT_EQ(step.prefill[0].sequence->id, id);
  EXPECT_EQ(step.prefill[0].begin, 12);
  EXPECT_EQ(scheduler.Counts().reused_tokens, 8 + 3);
}

TEST(SchedulerTest, PromptThatIsWhollyThereRunsItsLastTokenWithoutWriting) {
  Scheduler scheduler(ReusingOptions());
  scheduler.Submit(Prompt(8, 1));
  RunStep(scheduler);
  scheduler.Submit(Prompt(8, 4));
  const ScheduledStep& step = scheduler.ScheduleStep();
  ASSERT_EQ(step.prefill.size(), 1u);
  EXPECT_EQ(step.prefill[0].begin, 7);
  EXPECT_EQ(step.prefill[0].count, 1);
  EXPECT_TRUE(step.prefill[0].draws);
  EXPECT_FALSE(step.prefill[0].writes);
  EXPECT_EQ(scheduler.Counts().reused_tokens, 7);
}

TEST(SchedulerTest, CutLetsAnotherPromptShareWhatEndsWithinAPage) {
  Scheduler scheduler(ReusingOptions());
  Request first = Prompt(9, 1);
  first.cuts = {6};
  scheduler.Submit(first);
  RunStep(scheduler);
  Request second = Prompt(6, 3);
  second.prompt.insert(second.prompt.end(), {90, 91});
  scheduler.Submit(second);
  const ScheduledStep& step = scheduler.ScheduleStep();
  ASSERT_EQ(step.prefill.size(), 1u);
  EXPECT_EQ(step.prefill[0].begin, 6);
  // Two runs: the new one begins on a new page.
  std::vector<int64_t> runs;
  step.prefill[0].sequence->pages.ForEachRun(
      8, [&runs](std::span<const int32_t>, int64_t tokens) { runs.push_back(tokens); });
  EXPECT_EQ(runs, (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(step.prefill[0].sequence->pages.SlotOf(6) % SmallOptions().page_size, 0);
}

TEST(SchedulerTest, KeptTurnIsFoundByTheNextOne) {
  Scheduler scheduler(ReusingOptions());
  Request turn = Prompt(5, 6);
  turn.keep = true;
  turn.stop_ids = {99};
  const SequenceId id = scheduler.Submit(turn);
  RunStep(scheduler, 20);
  RunStep(scheduler, 21);
  RunStep(scheduler, 99);
  EXPECT_FALSE(scheduler.Has(id));
  Request next = Prompt(5, 2);
  next.prompt.insert(next.prompt.end(), {20, 21, 99, 40, 41});
  scheduler.Submit(next);
  EXPECT_EQ(scheduler.ScheduleStep().prefill[0].begin, 7);  // everything that was fed
}

TEST(SchedulerTest, PinnedPrefixStaysAndTooMuchIsRefused) {
  SchedulerOptions options = ReusingOptions();
  options.max_pinned_pages = 2;
  Scheduler scheduler(options);
  scheduler.Submit(Prompt(12, 1));
  RunStep(scheduler);
  const std::vector<int32_t> text = Prompt(12, 1).prompt;
  EXPECT_THAT(MessageOf([&] { scheduler.Pin(text); }), HasSubstr("3 pages would be pinned"));
  const Scheduler::Pinned pinned = scheduler.Pin(std::span(text).first(8));
  EXPECT_EQ(pinned.tokens, 8);
  scheduler.Submit(Prompt(21, 3, 100));  // evicts all but the pinned chunks
  RunStep(scheduler);
  EXPECT_EQ(scheduler.Pages().NumFree(), 0);
  EXPECT_EQ(scheduler.Chunks().PinnedPages(), 2);
  scheduler.Remove(1);
  scheduler.Submit(Prompt(12, 1));
  EXPECT_EQ(scheduler.ScheduleStep().prefill[0].begin, 8);
  scheduler.Unpin(pinned);
  EXPECT_EQ(scheduler.Chunks().PinnedPages(), 0);
}

// Returns a prompt with two shifted spans of 8 tokens. Their sources take 2 pages each, the prompt
// takes 5.
Request ShiftedPrompt() {
  Request request = Prompt(20, 1, /*first=*/100);
  request.shifted = {{.begin = 4, .end = 12}, {.begin = 12, .end = 19}};
  return request;
}

TEST(SchedulerTest, SourcesThatWouldEvictEachOtherWaitForRoom) {
  Scheduler scheduler(ReusingOptions(12));
  const SequenceId older = scheduler.Submit(Prompt(16, 12));  // 4 pages now, 7 at its end
  RunStep(scheduler);
  const SequenceId shifted = scheduler.Submit(ShiftedPrompt());
  for (int step = 0; step < 40 && scheduler.HasWork(); ++step) {
    if (scheduler.Has(older)) {
      EXPECT_EQ(scheduler.NumSources(), 0) << "step " << step;
    }
    RunStep(scheduler);
  }
  EXPECT_FALSE(scheduler.Has(older));
  EXPECT_FALSE(scheduler.Has(shifted));
  EXPECT_EQ(scheduler.Counts().source_tokens, 8 + 7) << "each once";
}

// Submits a sequence that is held after its only token. It has one page per 4 tokens of its prompt.
SequenceId Hold(Scheduler& scheduler, Request request) {
  request.hold = true;
  const SequenceId id = scheduler.Submit(std::move(request));
  while (scheduler.HasWork()) RunStep(scheduler);
  return id;
}

TEST(SchedulerTest, SourcesThatHeldSequencesLeaveNoRoomForAreNotStarted) {
  Scheduler scheduler(ReusingOptions(9));
  const SequenceId held = Hold(scheduler, Prompt(24, 1));  // leaves 3 pages
  const SequenceId shifted = scheduler.Submit(ShiftedPrompt());
  EXPECT_TRUE(scheduler.ScheduleStep().Empty()) << "the caller must learn that nothing goes on";
  EXPECT_EQ(scheduler.NumSources(), 0);
  EXPECT_TRUE(scheduler.HasWork());
  scheduler.Remove(held);
  for (int step = 0; step < 40 && scheduler.HasWork(); ++step) RunStep(scheduler);
  EXPECT_FALSE(scheduler.Has(shifted));
  EXPECT_EQ(scheduler.Counts().source_tokens, 8 + 7) << "each once";
}

TEST(SchedulerTest, WhatHeldSequencesHaveInCommonWithARequestNeedsNoRoom) {
  Scheduler scheduler(ReusingOptions(16));
  Request request = Prompt(20, 1, /*first=*/100);
  request.shifted = {{.begin = 12, .end = 20}};  // its source takes 2 pages, the prompt 5
  Request source = Prompt(12, 1);
  std::copy_n(request.prompt.begin() + 12, 7, source.prompt.begin());
  source.prompt[7] = 0;
  Hold(scheduler, Prompt(12, 1, /*first=*/100));  // 3 pages, which begin the prompt
  Hold(scheduler, std::move(source));             // 3 pages, the first of which begins the source
  Hold(scheduler, Prompt(28, 1, /*first=*/200));  // 7 pages
  EXPECT_EQ(scheduler.Pages().NumFree(), 3) << "2 for the prompt, 1 for its source";
  const SequenceId shifted = scheduler.Submit(request);
  for (int step = 0; step < 40 && scheduler.Has(shifted); ++step) RunStep(scheduler);
  EXPECT_FALSE(scheduler.Has(shifted));
}

TEST(SchedulerTest, WhatAPreemptedSequenceFindsOrCopiesIsNotComputedAgain) {
  SchedulerOptions options = ReusingOptions(14);
  options.max_pinned_pages = 1;
  Scheduler scheduler(options);
  scheduler.Submit(Prompt(4, 28));
  Request request = ShiftedPrompt();
  request.max_new_tokens = 16;
  const SequenceId shifted = scheduler.Submit(request);
  const auto run_while = [&](auto&& condition) {
    while (condition() && scheduler.HasWork()) RunStep(scheduler);
  };
  run_while([&] { return scheduler.Counts().shifted_tokens == 0; });
  const Scheduler::Pinned prefix = scheduler.Pin(std::span(request.prompt).first(4));
  EXPECT_EQ(prefix.tokens, 4);
  run_while([&] { return scheduler.Counts().preemptions == 0; });
  ASSERT_TRUE(scheduler.Has(shifted));
  const int64_t lost = scheduler.Get(shifted).lost;
  EXPECT_EQ(scheduler.Counts().shifted_tokens, 15);
  EXPECT_EQ(scheduler.Counts().recomputed_tokens, 0);
  run_while([&] { return scheduler.Has(shifted); });
  EXPECT_EQ(scheduler.Counts().shifted_tokens, 2 * 15);
  EXPECT_EQ(scheduler.Counts().recomputed_tokens, lost - 4 - 15);
  EXPECT_GT(lost, 4 + 15);
  scheduler.Unpin(prefix);
}

TEST(SchedulerTest, NobodyComputesForARequestThatIsGone) {
  Scheduler scheduler(ReusingOptions(12));
  const SequenceId shifted = scheduler.Submit(ShiftedPrompt());
  scheduler.ScheduleStep();
  EXPECT_EQ(scheduler.NumSources(), 2);
  scheduler.Remove(shifted);
  EXPECT_EQ(scheduler.NumSequences(), 0);
  EXPECT_FALSE(scheduler.HasWork());
  EXPECT_EQ(scheduler.Counts().removed, 1);
}

TEST(SchedulerTest, TextBeforeAShiftedSpanIsSharedUpToTheSpan) {
  Scheduler scheduler(ReusingOptions(12));
  Request shifted = Prompt(20, 1);
  shifted.shifted = {{.begin = 8, .end = 16}};
  const SequenceId id = scheduler.Submit(shifted);
  for (int step = 0; step < 10 && scheduler.Has(id); ++step) RunStep(scheduler);
  EXPECT_FALSE(scheduler.Has(id));
  scheduler.Submit(Prompt(20, 1));
  EXPECT_EQ(scheduler.ScheduleStep().prefill[0].begin, 8);
}

TEST(SchedulerTest, SequencesMoveDownWhenOthersLeave) {
  Scheduler scheduler(SmallOptions());
  for (int i = 0; i < 3; ++i) scheduler.Submit(Prompt(2, 8));
  RunStep(scheduler);
  scheduler.Remove(0);
  const ScheduledStep& step = scheduler.ScheduleStep();
  ASSERT_EQ(step.moves.size(), 1u);
  EXPECT_EQ(step.moves[0].from, 2);
  EXPECT_EQ(step.moves[0].to, 0);
  ASSERT_EQ(step.decode.size(), 2u);
  EXPECT_EQ(step.decode[0].sequence->id, 2);
  EXPECT_EQ(step.decode[1].sequence->id, 1);
}

TEST(SchedulerTest, StopTokenEndsASequenceAndDropsTheTokenAhead) {
  Scheduler scheduler(SmallOptions());
  Request request = Prompt(2, 8);
  request.stop_ids = {5};
  const SequenceId id = scheduler.Submit(request);
  scheduler.ScheduleStep();
  EXPECT_EQ(scheduler.ScheduleStep().decode_rows, 1);
  EXPECT_EQ(scheduler.TakeToken(id, 5), Finish::kStop);
  EXPECT_EQ(scheduler.TakeToken(id, 6), std::nullopt);
  EXPECT_EQ(scheduler.Pages().NumFree(), 8);
  EXPECT_FALSE(scheduler.HasWork());
}

}  // namespace
}  // namespace tokline

#include "harness/text/post_processor.h"

#include <limits>

#include "harness/text/sequence_steps.h"

namespace tokline {

PostProcessor PostProcessor::Read(const JsonNode& node, const BpeModel& model,
                                  const AddedTokens& added) {
  PostProcessor processor;
  processor.Add(node, {model, added}, 0);
  return processor;
}

void PostProcessor::Add(const JsonNode& node, const Context& context, int depth) {
  const JsonNode type = node.Member("type");
  if (type.Text() == "ByteLevel") {
    node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  } else if (type.Text() == "TemplateProcessing") {
    node.AllowKeys({"type", "single", "pair", "special_tokens"});
    AddTemplate(node, context);
  } else if (type.Text() == "Sequence") {
    for (const JsonNode& step : SequenceSteps(node, "processors", depth))
      Add(step, context, depth + 1);
  } else {
    type.Refuse("supported post-processors: ByteLevel, Sequence, TemplateProcessing");
  }
}

void PostProcessor::AddTemplate(const JsonNode& node, const Context& context) {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool seen_text = false;
  for (const JsonNode& item : node.Member("single").Items(kMaxPipelineSteps)) {
    item.AllowKeys({"SpecialToken", "Sequence"});
    if (const std::optional<JsonNode> text = item.Find("Sequence")) {
      text->AllowKeys({"id", "type_id"});
      const JsonNode id = text->Member("id");
      if (id.Text() != "A") id.Refuse("it must be \"A\", the text");
      if (seen_text) item.Fail("the text occurs twice");
      seen_text = true;
      continue;
    }
    const JsonNode token = item.Member("SpecialToken");
    token.AllowKeys({"id", "type_id"});
    const JsonNode entry = node.Member("special_tokens").Member(token.TextOf("id"));
    entry.AllowKeys({"id", "ids", "tokens"});
    for (const JsonNode& id_node : entry.Member("ids").Items(kMaxPipelineSteps)) {
      const auto id =
          static_cast<int32_t>(id_node.Integer(0, std::numeric_limits<int32_t>::max() - 1));
      if (context.model.Token(id) == nullptr && context.added.Find(id) == nullptr) {
        id_node.Refuse("no token has this id");
      }
      (seen_text ? after : before).push_back(id);
    }
  }
  if (!seen_text)
    node.Member("single").Fail("the text, {\"Sequence\": {\"id\": \"A\"}}, is missing");
  // A later template goes around the result of the earlier ones.
  before_.insert(before_.begin(), before.begin(), before.end());
  after_.insert(after_.end(), after.begin(), after.end());
}

}  // namespace tokline

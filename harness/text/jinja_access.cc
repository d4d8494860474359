// Attributes and items of values, and the methods of dictionaries, namespaces and loops.
#include <algorithm>

#include "harness/platform/printable.h"
#include "harness/text/jinja_builtins.h"
#include "harness/text/jinja_text.h"

namespace tokline::jinja {
namespace {

Callable Function(std::string_view name, std::function<Value(Arguments&)> call) {
  return {std::string(name), std::move(call)};
}

std::optional<Value> DictMethod(Context& context, const Value& object, std::string_view name) {
  const auto list_of = [&context, object](auto make) {
    return [&context, object, make](Arguments& arguments) -> Value {
      arguments.Finish(0);
      List list;
      context.budget.Step(object.Length());
      for (const auto& item : object.If<Dict>()->items) list.items.push_back(make(item));
      return list;
    };
  };
  if (name == "items") {
    return Function(name, list_of([](const auto& item) -> Value {
                      return List{{item.first, item.second}, true};
                    }));
  }
  if (name == "keys") {
    return Function(name, list_of([](const auto& item) -> Value { return item.first; }));
  }
  if (name == "values") {
    return Function(name, list_of([](const auto& item) { return item.second; }));
  }
  if (name == "get") {
    return Function(name, [object](Arguments& arguments) {
      const std::string key = arguments.Require(0, "key").Text().Bytes();
      const Value missing = arguments.Take(1, "default").value_or(Value());
      arguments.Finish(2);
      const Value* found = object.If<Dict>()->Find(key);
      return found == nullptr ? missing : *found;
    });
  }
  if (name == "copy") {
    return Function(name, [object](Arguments& arguments) {
      arguments.Finish(0);
      return object;
    });
  }
  return std::nullopt;
}

std::optional<Value> ListMethod(Context& context, const Value& object, std::string_view name) {
  if (name != "index" && name != "count") return std::nullopt;
  const bool count = name == "count";
  return Function(name, [&context, object, count](Arguments& arguments) -> Value {
    const Value wanted = arguments.Require(0, "value");
    arguments.Finish(1);
    const std::vector<Value>& items = object.If<List>()->items;
    context.budget.Step(std::ssize(items));
    const auto equal = [&](const Value& item) { return item.Equals(wanted); };
    if (count) return static_cast<int64_t>(std::ranges::count_if(items, equal));
    const auto found = std::ranges::find_if(items, equal);
    if (found == items.end()) throw Error("index does not find the value");
    return static_cast<int64_t>(found - items.begin());
  });
}

Value LoopAttribute(const Value& object, const Loop& loop, std::string_view name) {
  const auto size = std::ssize(loop.items);
  const auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return loop.depth;
  if (name == "depth0") return loop.depth - 1;
  if (name == "previtem") {
    return index == 0 ? Value(Undefined{"loop.previtem of the first item"})
                      : loop.items[loop.index - 1];
  }
  if (name == "nextitem") {
    return index + 1 == size ? Value(Undefined{"loop.nextitem of the last item"})
                             : loop.items[loop.index + 1];
  }
  if (name == "cycle") {
    return Function(name, [object, index](Arguments& arguments) {
      if (arguments.positional.empty()) throw Error("loop.cycle needs an argument");
      return arguments.positional[static_cast<size_t>(index) % arguments.positional.size()];
    });
  }
  return Undefined{StrCat("the attribute ", Quoted(name, 40), " of loop")};
}

}  // namespace

Value Attribute(Context& context, const Value& object, std::string_view name) {
  if (const auto* undefined = object.If<Undefined>()) {
    throw Error(undefined->name, " is undefined, and so has no ", Quoted(name, 40));
  }
  std::optional<Value> method;
  if (const auto* text = object.If<MarkedText>()) {
    method = TextMethod(context, *text, name);
  } else if (object.Is<List>()) {
    method = ListMethod(context, object, name);
  } else if (const auto* dict = object.If<Dict>()) {
    method = DictMethod(context, object, name);
    const Value* item = method ? nullptr : dict->Find(name);
    if (item != nullptr) return *item;
  } else if (const auto* names = object.IfNamespace()) {
    if (const Value* value = names->names.Find(name)) return *value;
  } else if (const auto* loop = object.If<Loop>()) {
    return LoopAttribute(object, *loop, name);
  }
  if (method) return *method;
  return Undefined{
      StrCat("the attribute ", Quoted(name, 40), " of a value of type ", object.TypeName())};
}

Value Item(Context& context, const Value& object, const Value& index) {
  if (const auto* undefined = object.If<Undefined>()) {
    throw Error(undefined->name, " is undefined, and so has no items");
  }
  if (const auto* name = index.If<MarkedText>()) {
    if (const auto* dict = object.If<Dict>()) {
      if (const Value* value = dict->Find(name->Bytes())) return *value;
    }
    return Attribute(context, object, name->Bytes());
  }
  const std::optional<int64_t> number = index.Integer();
  if (number && (object.Is<List>() || object.Is<MarkedText>())) {
    context.budget.Step(object.Is<List>() ? 1 : object.Length());
    const int64_t size = object.Length();
    const int64_t at = *number < 0 ? *number + size : *number;
    if (at < 0 || at >= size) return Undefined{StrCat("the item ", *number, " of ", size)};
    if (const auto* list = object.If<List>()) return list->items[static_cast<size_t>(at)];
    return object.Items()[static_cast<size_t>(at)];
  }
  return Undefined{StrCat("an item of a value of type ", object.TypeName())};
}

}  // namespace tokline::jinja

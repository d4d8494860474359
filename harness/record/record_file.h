// Files of records: validated on write and on read, appended line by whole line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/record/record.h"

namespace tokline {

// Throws InvalidArgument that names the field, its value and what is allowed. Checks the form of
// every field and that the figures of a row follow from its samples and cost.
void ValidateRecord(const Json& record);

// Appends to a file that others may be appending to. A line is there whole or not at all: it is
// written under a lock, then synced; a line that a killed writer left unfinished is cut off first.
class RecordWriter {
 public:
  // Opens the file, or makes it. Throws RuntimeFailure with the path and the reason, also for a
  // file that holds something else than records: it stays as it is.
  explicit RecordWriter(const std::string& path);
  // Removes the file if this made it and nobody appended anything.
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Returns when the line is on disk. Throws InvalidArgument for an invalid record, RuntimeFailure
  // if it cannot be written (and then nothing of it is).
  void Append(const Json& record);

 private:
  void Open();
  void RemoveIfEmpty() const;
  void RequireRecords() const;
  // False if another writer removed the file before the first line.
  bool AppendLine(std::string_view line);

  std::string path_;
  int file_ = -1;
  bool made_ = false;
  bool appended_ = false;
};

// Every record of a file, of which there may be none. A last line without its newline is left out,
// and `unfinished`, where given, says so ("" where there is none). Throws InvalidArgument that
// names file and line if one is not valid, RuntimeFailure if the file cannot be read.
std::vector<Json> ReadRecords(const std::string& path, std::string* unfinished = nullptr);

}  // namespace tokline

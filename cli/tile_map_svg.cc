#include "tile_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

namespace sirdar::cli {
namespace {

struct Style {
  const char *color, *word, *meaning;
};
constexpr std::array<Style, 3> kStyles = {{{"#f1f1ee", "empty", "no pair visible, skipped"},
                                           {"#e8a33d", "part", "masked pair by pair"},
                                           {"#2f6f9f", "full", "every pair visible"}}};
const Style& style_of(Cover cover) { return kStyles[static_cast<size_t>(cover)]; }

// Of scores, from the least to the largest.
struct Color {
  int red, green, blue;
};
constexpr Color kLightest{222, 235, 245}, kDarkest{16, 52, 92};

constexpr int64_t kLeft = 90, kTop = 70, kLegendHeight = 118, kRight = 40;
constexpr int64_t kDrawn = 512;  // pixels of the longer side of the map, about

// Text and attribute values; control characters are not allowed in XML at all.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else {
      result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

class Drawing {
 public:
  Drawing(const TileMap& map, const std::string& problem) : map_(map), problem_(problem) {
    const int64_t longest = std::max<int64_t>({1, map.num_rows, map.num_columns});
    cell_ = std::max<int64_t>(4, kDrawn / longest);
    width_ = std::max<int64_t>(460, kLeft + map.num_columns * cell_ + kRight);
    const int64_t num_notes = static_cast<int64_t>(map.unknown.size());
    height_ = kTop + map.num_rows * cell_ + kLegendHeight + 18 * num_notes;
    for (size_t n = 0; n < map.scores.size(); ++n) {
      const double score = map.scores[n];
      if (map.cells[n] == Cover::none || !std::isfinite(score)) continue;
      least_ = std::min(least_, score);
      most_ = std::max(most_, score);
    }
    if (least_ <= most_) height_ += 18;
  }

  std::string draw() {
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n",
        width_, height_);
    add("<title>Tile map of {}</title>\n", escaped(problem_));
    add("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    draw_title();
    draw_cells();
    draw_axes();
    draw_legend();
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  template <class... T>
  void add(fmt::format_string<T...> format, T&&... values) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<T>(values)...);
  }

  void draw_title() {
    constexpr size_t kLongest = 100;
    const std::string shown =
        problem_.size() > kLongest ? problem_.substr(0, kLongest) + " ..." : problem_;
    // Squeezed rather than cut off when it is wider than the drawing.
    const int64_t room = width_ - 24;
    const bool is_wide = static_cast<int64_t>(shown.size()) * 7 > room;
    add("<text x=\"12\" y=\"22\" font-weight=\"bold\"{}>{}</text>\n",
        is_wide ? fmt::format(" textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\"", room) : "",
        escaped(shown));
  }

  std::string color_at(int64_t row, int64_t column) const {
    const Cover cover = map_.at(row, column);
    if (cover == Cover::none || map_.scores.empty()) return style_of(cover).color;
    const double score = map_.scores[static_cast<size_t>(row * map_.num_columns + column)];
    if (!std::isfinite(score)) return "#c0392b";
    // In 32 steps, so that neighbours of nearly the same score are drawn as one.
    const double share = most_ > least_ ? (score - least_) / (most_ - least_) : 1;
    const double step = std::round(31 * share) / 31;
    const auto mixed = [&](int light, int dark) {
      return static_cast<int>(std::lround(light + step * (dark - light)));
    };
    return fmt::format("#{:02x}{:02x}{:02x}", mixed(kLightest.red, kDarkest.red),
                       mixed(kLightest.green, kDarkest.green),
                       mixed(kLightest.blue, kDarkest.blue));
  }

  // Neighbours of one color in a row are one rectangle.
  void draw_cells() {
    add("<g shape-rendering=\"crispEdges\">\n");
    for (int64_t row = 0; row < map_.num_rows; ++row) {
      for (int64_t column = 0; column < map_.num_columns;) {
        const std::string color = color_at(row, column);
        int64_t end = column + 1;
        while (end < map_.num_columns && color_at(row, end) == color) ++end;
        add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
            kLeft + column * cell_, kTop + row * cell_, (end - column) * cell_, cell_, color);
        column = end;
      }
    }
    const int64_t width = map_.num_columns * cell_, height = map_.num_rows * cell_;
    add("<path fill=\"none\" stroke=\"#fff\" stroke-opacity=\"0.6\" d=\"");
    for (int64_t row = 1; row < map_.num_rows; ++row) {
      add("M{} {}h{}", kLeft, kTop + row * cell_, width);
    }
    for (int64_t column = 1; column < map_.num_columns; ++column) {
      add("M{} {}v{}", kLeft + column * cell_, kTop, height);
    }
    add("\"/>\n<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" "
        "stroke=\"#555\"/>\n</g>\n",
        kLeft, kTop, width, height);
  }

  void draw_axes() {
    const int64_t width = map_.num_columns * cell_, height = map_.num_rows * cell_;
    add("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">key position</text>\n", kLeft + width / 2,
        kTop - 26);
    add("<text x=\"{}\" y=\"{}\">0</text>\n", kLeft, kTop - 8);
    add("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft + width, kTop - 8,
        map_.seqlen_k);
    const int64_t middle = kTop + height / 2;
    add("<text transform=\"translate(20 {}) rotate(-90)\" text-anchor=\"middle\">query "
        "row</text>\n",
        middle);
    add("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">0</text>\n", kLeft - 8, kTop + 10);
    add("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 8,
        std::max(kTop + height, kTop + 24), map_.seqlen_q);
  }

  void draw_legend() {
    int64_t y = kTop + map_.num_rows * cell_ + 30;
    for (const Cover cover : {Cover::none, Cover::part, Cover::all}) {
      const Style& style = style_of(cover);
      add("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"{}\" stroke=\"#555\"/>\n",
          kLeft, y - 11, style.color);
      add("<text x=\"{}\" y=\"{}\">{}: {} ({} of {} cells)</text>\n", kLeft + 22, y, style.word,
          style.meaning, std::ranges::count(map_.cells, cover), map_.cells.size());
      y += 20;
    }
    const bool is_grouped = map_.cell_m != map_.block_m || map_.cell_n != map_.block_n;
    add("<text x=\"{}\" y=\"{}\">tile: {} query rows x {} keys{}</text>\n", kLeft, y, map_.block_m,
        map_.block_n,
        is_grouped ? fmt::format("; cell: {} x {} tiles", map_.cell_m / map_.block_m,
                                 map_.cell_n / map_.block_n)
                   : "");
    if (least_ <= most_) {
      y += 18;
      add("<text x=\"{}\" y=\"{}\">a score of 1 becomes {:.3g} (light) to {:.3g} (dark)</text>\n",
          kLeft, y, least_, most_);
    }
    for (const std::string& unknown : map_.unknown) {
      y += 18;
      add("<text x=\"{}\" y=\"{}\">not drawn: {}, known only with the data</text>\n", kLeft, y,
          escaped(unknown));
    }
  }

  const TileMap& map_;
  const std::string& problem_;
  int64_t cell_ = 0, width_ = 0, height_ = 0;
  // Of what finite scores become; none: least_ > most_.
  double least_ = std::numeric_limits<double>::infinity(), most_ = -least_;
  std::string svg_;
};

}  // namespace

std::string tile_map_svg(const TileMap& map, const std::string& problem) {
  return Drawing(map, problem).draw();
}

}  // namespace sirdar::cli

//! Pictures, and the files that they are written to.

use super::PlotError;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

/// DejaVu Sans, cut to what pictures need; see `assets/LICENSE-DejaVu.txt`.
#[cfg(feature = "png")]
const FONT: &[u8] = include_bytes!("../../assets/DejaVuSans-subset.ttf");

/// Registers our font as `sans-serif`. Once `plotters` is built with `ab_glyph`, it knows no other
/// font, not even to measure text for SVG. Without `ab_glyph`, it estimates the size of text.
fn use_own_font() {
    #[cfg(feature = "png")]
    // It fails only for a broken font; tests draw with ours.
    let _ = plotters::style::register_font("sans-serif", FontStyle::Normal, FONT);
}

/// Size of all pictures, in pixels.
pub(crate) const SIZE: (u32, u32) = (960, 640);

/// Whether a surface could be drawn on.
pub type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A plot that can be drawn on any surface.
pub trait Picture {
    /// Draws the plot.
    ///
    /// # Errors
    /// If the surface cannot be drawn on.
    fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, area: &DrawingArea<B, Shift>) -> Drawn;

    /// Returns the plot as the text of an SVG file.
    ///
    /// # Errors
    /// [`PlotError::Draw`] if the library fails.
    fn to_svg(&self) -> Result<String, PlotError> {
        use_own_font();
        let mut svg = String::new();
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        self.draw(&area).map_err(|error| PlotError::Draw(error.to_string()))?;
        drop(area);
        Ok(svg)
    }

    /// Returns the plot as the content of a PNG file.
    ///
    /// # Errors
    /// [`PlotError::Draw`] if the library fails.
    #[cfg(feature = "png")]
    fn to_png(&self) -> Result<Vec<u8>, PlotError> {
        use_own_font();
        let mut pixels = vec![0; (SIZE.0 * SIZE.1 * 3) as usize];
        let area = BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area();
        self.draw(&area).map_err(|error| PlotError::Draw(error.to_string()))?;
        drop(area);
        encode_png(&pixels).map_err(|error| PlotError::Draw(error.to_string()))
    }

    /// Writes the plot in the format of the file's extension: `.svg`, or `.png` with that feature.
    ///
    /// # Errors
    /// If the extension is neither, or the picture cannot be drawn or written.
    fn write(&self, file: &Path) -> Result<(), PlotError> {
        let bytes = match file.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => self.to_svg()?.into_bytes(),
            #[cfg(feature = "png")]
            Some("png") => self.to_png()?,
            _ => return Err(PlotError::Format(file.to_owned())),
        };
        forerun_output::write(file, bytes)
            .map_err(|cause| PlotError::Write { file: file.to_owned(), cause })
    }
}

/// Returns the stroke that stands for a line in a legend.
pub(super) fn legend(colour: RGBColor) -> impl Fn((i32, i32)) -> PathElement<(i32, i32)> {
    move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
}

/// Encodes pixels of red, green and blue as a PNG file.
#[cfg(feature = "png")]
fn encode_png(pixels: &[u8]) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, SIZE.0, SIZE.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

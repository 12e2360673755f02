//! The file of a picture.

use crate::PlotError;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use std::fs;
use std::path::Path;

/// DejaVu Sans, cut to what pictures need; see `assets/LICENSE-DejaVu.txt`.
const FONT: &[u8] = include_bytes!("../assets/DejaVuSans-subset.ttf");

/// Makes our font that of every family `sans-serif`. What draws text has to call it first.
pub fn use_own_font() {
    // Our own font is one: tests draw with it.
    let _ = register_font("sans-serif", FontStyle::Normal, FONT);
}

/// Size of all pictures, in pixels.
pub(crate) const SIZE: (u32, u32) = (960, 640);

/// What can be drawn on anything.
pub trait Picture {
    /// Draws itself.
    ///
    /// # Errors
    /// If the surface cannot be drawn on.
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        B::ErrorType: 'static;

    /// Writes itself as the file's name says: `.svg` or `.png`.
    ///
    /// # Errors
    /// If the name says neither, or the picture cannot be drawn or written.
    fn write(&self, file: &Path) -> Result<(), PlotError> {
        use_own_font();
        let draw_failed = |error: Box<dyn std::error::Error>| PlotError::Draw(error.to_string());
        let bytes = match file.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => {
                let mut svg = String::new();
                let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
                self.draw(&area).map_err(draw_failed)?;
                drop(area);
                svg.into_bytes()
            }
            Some("png") => {
                let mut dots = vec![0; (SIZE.0 * SIZE.1 * 3) as usize];
                let area = BitMapBackend::with_buffer(&mut dots, SIZE).into_drawing_area();
                self.draw(&area).map_err(draw_failed)?;
                drop(area);
                png(&dots).map_err(|error| PlotError::Draw(error.to_string()))?
            }
            _ => return Err(PlotError::Format(file.to_owned())),
        };
        fs::write(file, bytes).map_err(|cause| PlotError::Write { file: file.to_owned(), cause })
    }
}

/// Dots of red, green and blue as a PNG file.
fn png(dots: &[u8]) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, SIZE.0, SIZE.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(dots)?;
    writer.finish()?;
    Ok(bytes)
}

/** Which of several loaders is shown large: that of the loop that trains. */

import type { AnalysisState } from '../analysis/analysis.js';
import type { LoaderState } from '../stream/page_messages.js';

/** Its id: the kernel's choice; before a loop has run, of the loaders that are still there the first. */
export function mainLoader(
  loaders: readonly LoaderState[],
  analysis: AnalysisState | null
): string | null {
  const main =
    loaders.find(({ id, ended }) => id === analysis?.main && ended !== true) ??
    loaders.find(({ ended }) => ended !== true) ??
    loaders.at(-1);
  return main?.id ?? null;
}

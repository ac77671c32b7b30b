/** Which of several loaders is shown large: the one that trains. */

import type { LoaderState } from '../stream/page_messages.js';

/** The id of the loader that has delivered most, of those that are still there; null where there is none. */
export function mainLoader(loaders: readonly LoaderState[]): string | null {
  let main: LoaderState | null = null;
  for (const loader of loaders) {
    const isBetter: boolean =
      main === null ||
      (main.ended === true && loader.ended !== true) ||
      (main.ended === loader.ended && delivered(loader) > delivered(main));
    main = isBetter ? loader : main;
  }
  return main?.id ?? null;
}

/** Samples over all its epochs. */
function delivered({ epoch, planned, samples }: LoaderState): number {
  return epoch * (planned ?? samples) + samples;
}
